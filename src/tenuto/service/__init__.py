"""Tenuto over HTTP. `app.create_app(engine, settings)` is the whole service; the rest are its parts."""
