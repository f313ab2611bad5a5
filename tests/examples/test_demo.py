"""The demo: what it shows happened, and its exit code says whether it adds up."""

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from examples.demo.ledger import Ledger, check_events, check_money, check_orders, check_stock

from .pages import ROOT, fences

DEMO = [sys.executable, "-m", "examples.demo"]


def test_the_quick_demo_kills_a_worker_and_adds_up() -> None:
    done = subprocess.run([*DEMO, "--quick"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "\x1b" not in done.stdout
    in_order(
        done.stdout,
        "Orders come in",
        "reserve failed (http_503), it is tried again",
        "kill -9",
        "takes over what the dead worker had",
        "its worker was lost during pay",
        "the payment was made, it is not made again",
        "All orders are completed.",
        "34 = ",
        "sound",
        "It adds up.",
    )
    (session,) = [fence.text for fence in fences(ROOT / "README.md") if fence.text.startswith("$ make demo-quick")]
    told = {steady(line) for line in done.stdout.splitlines()}
    assert [line for line in session.splitlines() if line[:1] == " " and steady(line) not in told] == []


def steady(line: str) -> str:
    """Without what differs from run to run: times, process ids and amounts."""
    return re.sub(r"\s+", " ", re.sub(r"(?<!order-)\b\d[\d.,]*", "0", line)).strip()


def in_order(printed: str, *texts: str) -> None:
    lines = iter(printed.splitlines())
    for text in texts:
        assert any(text in line for line in lines), f"{text!r} is missing, or too early, in\n{printed}"


def test_the_demo_on_a_terminal_takes_no_for_an_answer_and_stays() -> None:
    terminal, inner = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    command = [*DEMO, "--orders", "14"]
    demo = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=inner, stdout=inner, stderr=inner)
    os.close(inner)
    printed = b""
    asked = stays = False
    shown = ""
    while chunk := read(terminal):
        printed += chunk
        if not asked and b"y/n" in printed:
            asked = True
            os.write(terminal, b"xn")  # any other key is no answer
        if not stays and b"Ctrl-C stops it" in printed:
            stays = True
            for link in re.findall(rb"https?://[^\s#,]+", printed):
                assert httpx2.get(link.decode(), timeout=60, follow_redirects=True).status_code == 200, link
            shown = follow(printed.decode())
            demo.send_signal(signal.SIGINT)
    os.close(terminal)
    assert demo.wait() == 0, printed.decode()
    assert (asked, stays) == (True, True)
    assert b"\x1b[32m" in printed  # in colour
    assert b"order-001: rejected" in printed
    in_order(shown, "worker_lost", "undone", "approved", "failed: NON_RETRYABLE")
    assert b"It adds up." in printed


def follow(printed: str) -> str:
    """Runs the commands that the demo ends with, and returns what they print."""
    (url,) = re.findall(r"export TENUTO_URL=(\S+)", printed)
    commands = re.findall(r"^ {2}tenuto (.+?) +#", printed, re.MULTILINE)
    assert len(commands) == 4
    environment = {**os.environ, "TENUTO_URL": url}
    tenuto = [sys.executable, "-m", "tenuto"]
    ran = [
        subprocess.run([*tenuto, *command.split()], env=environment, capture_output=True, text=True, check=True)
        for command in commands
    ]
    return "".join(done.stdout for done in ran)


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # how Linux says that the other end is closed
        return b""


# -- The ledger --------------------------------------------------------------------------------------------------------


def order(status: str) -> dict[str, Any]:
    return {"status": status, "cents": 450, "item": "tea", "quantity": 1}


ORDERS = {"a": order("confirmed"), "b": order("refunded"), "c": order("canceled")}
CHARGED = [{"order_id": id, "kind": "charge", "cents": 450} for id in ("a", "b")]
REFUNDED = {"order_id": "b", "kind": "refund", "cents": 450}
HISTORY = {id: ["pending", order["status"]] for id, order in ORDERS.items()}


def test_a_ledger_that_adds_up() -> None:
    ledger = Ledger()
    check_orders(ledger, ORDERS, {"b", "c"})
    check_money(ledger, ORDERS, [*CHARGED, REFUNDED])
    check_stock(ledger, ORDERS, {"tea": {"available": 999, "held": 1}})
    check_events(ledger, ORDERS, HISTORY)
    assert ledger.wrong == []


@pytest.mark.parametrize(
    ("check", "problem"),
    [
        (lambda ledger: check_orders(ledger, {"a": order("paid")}, set()), "not completed: a"),
        (lambda ledger: check_orders(ledger, ORDERS, {"a"}), "canceled by the customer, and confirmed: a"),
        (lambda ledger: check_money(ledger, ORDERS, CHARGED), "€9.00 were kept, and €4.50 are owed"),
        (lambda ledger: check_money(ledger, ORDERS, [*CHARGED, REFUNDED, REFUNDED]), "more than once: b (refund)"),
        (lambda ledger: check_money(ledger, ORDERS, [CHARGED[1]]), "a is confirmed with 0 charges and 0 refunds"),
        (lambda ledger: check_stock(ledger, ORDERS, {"tea": {"available": 998, "held": 2}}), "of 1000 tea, 1 were"),
        (lambda ledger: check_events(ledger, ORDERS, HISTORY | {"a": ["paid", "paid"]}), "1 events were counted twice"),
        (lambda ledger: check_events(ledger, ORDERS, {"a": HISTORY["a"]}), "does not know the end of b, c"),
    ],
)
def test_a_ledger_that_does_not(check: Callable[[Ledger], None], problem: str) -> None:
    ledger = Ledger()
    check(ledger)
    assert any(problem in found for found in ledger.wrong), ledger.wrong
