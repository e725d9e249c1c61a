"""What scaling from zero costs and how long it takes: a scaler with many ScaledObjects, a fleet that wakes
up, a fleet under a burst.

`keda` asks a scaler as KEDA and the HPAs do, `crowd` measures one so; `wake` and `burst` watch a fleet in
either home.
"""
