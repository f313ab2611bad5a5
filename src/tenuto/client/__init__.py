"""The HTTP client behind `Engine("https://…", api_key=…)`. It runs no steps."""

from .service_client import ServiceClient

__all__ = ["ServiceClient"]
