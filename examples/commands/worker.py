"""A platform worker without an SDK: it receives directives over HTTP and answers them by callback.

    python worker.py ocr https://tenuto.example tnt_…            a key made with --role worker --service ocr
    python worker.py ocr … --fault duplicate --count 3           misbehave, and stop after three directives

It deduplicates transport by the message's id and effects by the directive's idempotency key, as any worker must.
"""

import argparse
import json
import time
import urllib.error
import urllib.request

FAULTS = ("none", "no-ack", "no-result", "duplicate", "stale", "forged", "slow", "failed")
RESULTS = {"ocr": {"pages": 12}, "embedding": {"vectors": 340}, "sis": {"indexed": True}}


def post(url: str, body: object, token: str) -> dict[str, object]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310  (the URL of the service)
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        text = answer.read()
    return dict(json.loads(text)) if text else {}


def work(service: str, directive: dict[str, object], done: dict[str, object]) -> object:
    """Makes the effect once per idempotency key, however often the directive arrives."""
    key = str(directive["idempotency_key"])
    if key not in done:
        done[key] = RESULTS.get(service, {"done": True})
        print(f"{service}: {directive['jobId']} attempt {directive['attempt_no']} did its work", flush=True)
    return done[key]


def handle(service: str, directive: dict[str, object], done: dict[str, object], fault: str) -> None:
    urls, token = directive["callback_urls"], str(directive["callback_token"])
    assert isinstance(urls, dict)
    bound = {name: directive[name] for name in ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")}
    if fault == "slow":
        time.sleep(2)
    if fault != "no-ack":
        post(urls["ack"], {**bound, "workspace_ref": f"{directive['output_ref']}/{service}"}, token)
    if fault == "no-result":
        return
    result: dict[str, object]
    if fault == "failed":
        result = {"status": "FAILED", "error": {"class": "TRANSIENT", "code": "gpu_busy"}}
    else:
        result = {"status": "SUCCEEDED", "result": work(service, directive, done)}
    if fault == "forged":
        try:
            post(urls["result"], {**bound, **result}, token[:-4] + "AAAA")
        except urllib.error.HTTPError as error:
            print(f"{service}: forged, {error.code}", flush=True)
    if fault == "stale":
        stale = {**bound, "lease_id": "0" * 32}
        try:
            post(urls["result"], {**stale, **result}, token)
        except urllib.error.HTTPError as error:
            print(f"{service}: stale, {error.code}", flush=True)
    for _ in range(2 if fault == "duplicate" else 1):
        verdict = post(urls["result"], {**bound, **result}, token)["verdict"]
        print(f"{service}: {directive['stepId']} {verdict}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("service")
    parser.add_argument("server")
    parser.add_argument("key")
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--count", type=int, default=0, help="stop after so many directives; 0 is never")
    given = parser.parse_args()
    seen: set[str] = set()
    done: dict[str, object] = {}
    while not given.count or len(seen) < given.count:
        wanted = {"max": 1, "wait_ms": 5_000, "lock_ms": 30_000}
        messages = post(f"{given.server}/v1/bus/{given.service}:receive", wanted, given.key)["messages"]
        assert isinstance(messages, list)
        for message in messages:
            if message["id"] not in seen:
                handle(given.service, message["directive"], done, given.fault)
                seen.add(message["id"])
            settle = f"{given.server}/v1/bus/messages/{message['id']}:complete"
            post(settle, {"lock_token": message["lock_token"]}, given.key)


if __name__ == "__main__":
    main()
