"""`/docs`: the operations as a page of plain HTML. Nothing is loaded from anywhere."""

from html import escape
from typing import Any

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
code { font: 13px ui-monospace, monospace; } h2 { margin-top: 2.5rem; text-transform: capitalize; }
table { border-collapse: collapse; width: 100%; } td { border-top: 1px solid #ddd; padding: .4rem .6rem .4rem 0; }
td:first-child { white-space: nowrap; } td:last-child { color: #666; text-align: right; white-space: nowrap; }
"""


def docs_page(document: dict[str, Any]) -> str:
    by_tag: dict[str, list[str]] = {}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            tag = (operation.get("tags") or ["service"])[0]
            by_tag.setdefault(tag, []).append(_row(method, path, operation))
    sections = [f"<h2>{escape(tag)}</h2><table>{''.join(rows)}</table>" for tag, rows in by_tag.items()]
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    opening = "<p>The whole description, for programs: <a href='openapi.json'>openapi.json</a>.</p>"
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title><style>{_STYLE}</style>"
        f"<h1>{title}</h1>{opening}{''.join(sections)}</html>"
    )


def _row(method: str, path: str, operation: dict[str, Any]) -> str:
    cells = (f"<code>{method.upper()} {escape(path)}</code>", escape(operation.get("summary", "")))
    permission = f"<code>{escape(operation.get('x-permission', ''))}</code>"
    return f"<tr><td>{cells[0]}</td><td>{cells[1]}</td><td>{permission}</td></tr>"
