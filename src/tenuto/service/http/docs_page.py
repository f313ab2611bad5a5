"""The `/docs` page: all operations, each with a form to try it. It loads nothing from other sites.

The page is readable without its script, which signs in with the key in the link of `tenuto dev` and sends forms.
"""

import base64
import hashlib
import json
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "docs"
_SIGN_IN = (
    "<form id='who'><span id='told'>Signing in and sending requests need JavaScript</span>"
    "<input id='key' type='password' autocomplete='off' placeholder='tnt_…' aria-label='API key'>"
    "<button>Sign in</button><button type='button' id='leave'>Sign out</button></form>"
)


@lru_cache(1)
def page_style() -> str:
    return (_FOLDER / "page.css").read_text(encoding="utf-8")


@lru_cache(1)
def _script() -> str:
    return (_FOLDER / "page.js").read_text(encoding="utf-8")


def policy() -> str:
    """The content security policy: only the page's own style and script, by their hashes."""
    return (
        f"default-src 'none'; {style_policy()}; script-src {_hash(_script())}; "
        "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    )


def style_policy() -> str:
    return f"style-src {_hash(page_style())}"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def docs_page(document: dict[str, Any]) -> str:
    by_tag: dict[str, list[str]] = {}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            tag = (operation.get("tags") or ["service"])[0]
            by_tag.setdefault(tag, []).append(_operation(method.upper(), path, operation))
    sections = [f"<h2>{escape(tag)}</h2>{''.join(operations)}" for tag, operations in by_tag.items()]
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    opening = (
        "<p>The OpenAPI document: <a href='openapi.json'>openapi.json</a>. "
        "Select a row to open it: its parameters, an example, and a form to send it.</p>"
    )
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title>"
        f"<meta name='viewport' content='width=device-width'><style>{page_style()}</style>"
        f"<h1>{title}</h1>{opening}{_SIGN_IN}{''.join(sections)}<script>{_script()}</script></html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    permission = escape(operation.get("x-permission", "open"))
    head = (
        f"<summary><code class='path'>{method} {escape(path)}</code>"
        f"<span class='what'>{escape(operation.get('summary', ''))}</span>"
        f"<code class='permission'>{permission}</code></summary>"
    )
    about = f"<p>{escape(operation['description'])}</p>" if operation.get("description") else ""
    fields = "".join(_field(parameter) for parameter in operation.get("parameters", ()))
    return (
        f"<details id='{escape(operation['operationId'])}'>{head}{about}"
        f"<form data-method='{method}' data-path='{escape(path)}'>{fields}{_body(operation)}"
        "<button>Send</button><pre hidden></pre></form></details>"
    )


def _field(parameter: dict[str, Any]) -> str:
    name, place = escape(parameter["name"]), escape(parameter["in"])
    needed = " required" if parameter.get("required") else ""
    about = parameter.get("description") or parameter.get("schema", {}).get("description", "")
    note = f"<small>{escape(about)}</small>" if about else ""
    return f"<label><code>{name}</code><span><input name='{name}' data-in='{place}'{needed}> {note}</span></label>"


def _body(operation: dict[str, Any]) -> str:
    if "requestBody" not in operation:
        return ""
    text = json.dumps(operation["requestBody"]["content"]["application/json"]["example"], indent=2, ensure_ascii=False)
    return f"<label><code>body</code><textarea spellcheck='false'>{escape(text)}</textarea></label>"
