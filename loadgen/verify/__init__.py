"""Attacks a coordination service of our own and proves from the history that it kept its promises.

Worker processes submit, claim and settle while servers, PostgreSQL, workers, connections and clocks are
harmed. Every answer that anybody saw is written down before it is acted on; afterwards each item's story
must be one that the rules allow. Nothing is sampled and nothing is asked of the store but by its API.
"""
