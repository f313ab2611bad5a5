"""The page at `/` of a service without a console: what there is, and where."""

from html import escape
from typing import Final

import tenuto

from .docs_page import page_style, style_policy

_LINKS: Final = (
    ("docs", "Every operation of the API, with a form to try it"),
    ("openapi.json", "The OpenAPI document, for client generators"),
    ("healthz", "Liveness"),
    ("readyz", "Readiness"),
    ("metrics", "Metrics in the Prometheus format"),
)


def start_page(prefix: str) -> str:
    """Returns the page. `prefix` is the path at which the service is mounted."""
    rows = "".join(
        f"<li><a href='{escape(prefix)}/{path}'><code>/{path}</code></a> {escape(about)}</li>" for path, about in _LINKS
    )
    title = escape(f"Tenuto {tenuto.__version__}")
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title>"
        f"<meta name='viewport' content='width=device-width'><style>{page_style()}</style>"
        f"<h1>{title}</h1><p>This is the HTTP service. Its console is switched off or was not built.</p><ul>{rows}</ul>"
        "</html>"
    )


def start_page_policy() -> str:
    return f"default-src 'none'; {style_policy()}; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
