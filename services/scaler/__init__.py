"""Scaler: tells KEDA how much there is to do for each fleet.

Called by KEDA only, by KEDA's contract. It owns nothing: what it says is what coordination last said in one
stream, `WatchQueues`. Refuses triggers that name another namespace's queue, and to say zero when it does not
know.
"""
