"""An order service on FastAPI that embeds Tenuto, with an inventory and a payment service that can fail.

Read `saga.py` first, then `orders.py` and `service.py`. `docs/guides/orders.md` explains every choice.
"""
