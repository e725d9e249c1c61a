"""What reviews and verbs take: latencies and rates, of answers that are what they have to be.

`corpus` is what is reviewed, `reviews` and `verbs` ask and check the answers, `sample` counts, `home` is the
plane that is asked, `command` prints the table.
"""
