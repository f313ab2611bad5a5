"""The built-in handler `email`: the message, what the server's answers mean, and that none is sent twice."""

from pathlib import Path
from typing import Any

import pytest

from tenuto.errors import DefinitionError
from tests.servers import smtp
from tests.servers.tls import authority

from .conftest import MakeEngine
from .documents import document, run

MESSAGE = {
    "to": ["Ann <ann@example.org>", "bob@example.org"],
    "subject": "Paid: ${input.n} €",
    "text": "Thanks.\n.\nus",
}
TWO = {"max_attempts": 2, "initial_delay_ms": 1, "max_delay_ms": 1}


def settings(mail: smtp.Mail) -> dict[str, str]:
    return {"smtp_url": f"smtp://127.0.0.1:{mail.port}", "mail_from": "Shop <shop@example.org>"}


async def test_a_message_is_sent(make_engine: MakeEngine, mail: smtp.Mail) -> None:
    given = {
        **MESSAGE,
        "html": "<p>Thanks</p>",
        "cc": ["c@example.org"],
        "bcc": ["d@example.org"],
        "reply_to": "r@x.org",
    }
    result = await run(await make_engine(**settings(mail)), "email", given, {"n": 9})

    ((sender, recipients, message),) = mail.taken
    assert (sender, recipients) == (
        "shop@example.org",
        ["ann@example.org", "bob@example.org", "c@example.org", "d@example.org"],
    )
    assert (message["Subject"], message["To"]) == ("Paid: 9 €", "Ann <ann@example.org>, bob@example.org")
    assert (message["Cc"], message["Bcc"], message["Reply-To"]) == ("c@example.org", None, "r@x.org")
    text, html = message.iter_parts()  # type: ignore[attr-defined]  # the policy makes it an EmailMessage
    assert (text.get_content(), html.get_content()) == ("Thanks.\n.\nus\n", "<p>Thanks</p>\n")
    assert result.output == {"message_id": message["Message-ID"], "refused": 0}
    assert message["Message-ID"].endswith("@example.org>")


async def test_one_recipient_is_written_without_brackets(make_engine: MakeEngine, mail: smtp.Mail) -> None:
    given = {"to": "a@example.org", "cc": "c@example.org", "bcc": "d@example.org", "subject": "x", "text": "y"}
    await run(await make_engine(**settings(mail)), "email", given, {})
    ((_, recipients, message),) = mail.taken
    assert recipients == ["a@example.org", "c@example.org", "d@example.org"]
    assert (message["To"], message["Cc"], message["Bcc"]) == ("a@example.org", "c@example.org", None)


async def test_every_attempt_sends_the_same_message(make_engine: MakeEngine, mail: smtp.Mail) -> None:
    mail.answers["."] = "451 later"
    result = await run(await make_engine(**settings(mail)), "email", MESSAGE, {"n": 1}, retry_policy=TWO)
    assert (result.status, result.steps["work"].attempts) == ("succeeded", 2)
    assert len(mail.taken) == 1


@pytest.mark.parametrize(
    ("answers", "error_class", "code"),
    [
        ({"MAIL shop@example.org": "550 no"}, "NON_RETRYABLE", "smtp_550"),
        ({"RCPT ann@example.org": "550 no", "RCPT bob@example.org": "450 later"}, "TRANSIENT", "smtp_450"),
        ({"RCPT ann@example.org": "550 no", "RCPT bob@example.org": "551 no"}, "NON_RETRYABLE", "smtp_550"),
        ({"DATA": "421 closing"}, "TRANSIENT", "smtp_421"),
        ({".": "554 spam"}, "NON_RETRYABLE", "smtp_554"),
        ({"MAIL shop@example.org": ""}, "TRANSIENT", "smtp_connection"),
        ({".": ""}, "INDETERMINATE", "smtp_connection"),
    ],
)
async def test_what_the_server_says_decides(
    make_engine: MakeEngine, mail: smtp.Mail, answers: dict[str, str], error_class: str, code: str
) -> None:
    mail.answers.update(answers)
    work = (await run(await make_engine(**settings(mail)), "email", MESSAGE, {"n": 1})).steps["work"]
    assert (work.error_class, work.error_code, mail.taken) == (error_class, code, [])
    assert "example.org" not in str(work.error)


@pytest.mark.parametrize("answer", ["550 unknown", "450 later"])
async def test_those_whom_the_server_takes_get_it_once(make_engine: MakeEngine, mail: smtp.Mail, answer: str) -> None:
    """Also if others would be taken later: to send it anew would be to send it twice to those who have it."""
    mail.answers["RCPT bob@example.org"] = answer
    result = await run(await make_engine(**settings(mail)), "email", MESSAGE, {"n": 1}, retry_policy=TWO)
    assert (result.output["refused"], result.steps["work"].attempts) == (1, 1)
    assert [taken.recipients for taken in mail.taken] == [["ann@example.org"]]


@pytest.mark.parametrize(
    "given",
    [
        {"to": "ann@example.org"},
        {"to": [], "subject": "x"},
        {"to": "nobody", "subject": "x"},
        {"to": "ann@example.org\nBcc: all@example.org", "subject": "x"},
        {"to": "ann@example.org", "subject": "x\r\nBcc: all@example.org"},
    ],
)
async def test_what_is_wrong_with_a_message_is_said(
    make_engine: MakeEngine, mail: smtp.Mail, given: dict[str, Any]
) -> None:
    work = (await run(await make_engine(**settings(mail)), "email", "${input}", given)).steps["work"]
    assert (work.error_class, work.error_code, mail.taken) == ("NON_RETRYABLE", "bad_with", [])


@pytest.mark.parametrize("server", ["", "http://mail.example"])
async def test_without_a_server_it_says_what_to_set(make_engine: MakeEngine, server: str) -> None:
    engine = await make_engine(smtp_url=server, mail_from="us@example.org")
    work = (await run(engine, "email", MESSAGE, {"n": 1})).steps["work"]
    assert work.error_code == "smtp_missing"
    assert "TENUTO_SMTP_URL" in str(work.error)


async def test_a_server_that_is_not_there_is_a_passing_fault(make_engine: MakeEngine) -> None:
    engine = await make_engine(smtp_url="smtp://127.0.0.1:9", mail_from="us@example.org")
    assert (await run(engine, "email", MESSAGE, {"n": 1})).steps["work"].error_class == "TRANSIENT"


async def test_a_password_is_not_sent_in_the_open(make_engine: MakeEngine, mail: smtp.Mail) -> None:
    engine = await make_engine(smtp_url=f"smtp://user:canary@127.0.0.1:{mail.port}", mail_from="us@example.org")
    work = (await run(engine, "email", MESSAGE, {"n": 1})).steps["work"]
    assert (work.error_class, work.error_code, mail.login) == ("NON_RETRYABLE", "smtp_plain", [])


@pytest.mark.parametrize("trusted", [True, False])
async def test_an_encrypted_server_is_trusted_by_its_certificate(
    make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    tls = authority(tmp_path)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    async with smtp.running(extensions=("AUTH PLAIN",), tls=tls) as mail:
        engine = await make_engine(smtp_url=f"smtps://user:p%40ss@127.0.0.1:{mail.port}", mail_from="us@example.org")
        work = (await run(engine, "email", MESSAGE, {"n": 1})).steps["work"]
        assert (work.status, len(mail.taken), len(mail.login)) == (("succeeded", 1, 1) if trusted else ("failed", 0, 0))


# -- Exactly one address -----------------------------------------------------------------------------------------------

NOT_ONE = [
    "shop@example.org, boss@bank.example",
    "<shop@example.org>, <boss@bank.example>",
    "shop@example.org; boss@bank.example",
    "shop@example.org boss@bank.example",
    "team: shop@example.org, boss@bank.example;",
    "team: shop@example.org;",
    "boss@bank.example <shop@example.org>",
    "shop@example.org\r\nBcc: boss@bank.example",
    "<shop@example.org",
    "shop@",
    "@example.org",
    "shop",
    "",
]


@pytest.mark.parametrize("text", NOT_ONE)
@pytest.mark.parametrize("field", ["from", "to", "cc", "bcc", "reply_to"])
async def test_what_is_not_exactly_one_address_is_refused(
    make_engine: MakeEngine, mail: smtp.Mail, field: str, text: str
) -> None:
    """When it is published, and where an expression gives it, before anything is sent."""
    engine = await make_engine(**settings(mail))
    given = {"to": "ann@example.org", "subject": "x", "text": "y", field: "${input.text}"}
    work = (await run(engine, "email", given, {"text": text})).steps["work"]
    assert (work.error_class, work.error_code, mail.taken) == ("NON_RETRYABLE", "bad_with", [])
    with pytest.raises(DefinitionError):
        await engine.apply({**document("email", {**given, field: text}), "version": 2})


async def test_a_tenant_has_one_sender_too(make_engine: MakeEngine, mail: smtp.Mail) -> None:
    engine = (await make_engine(**settings(mail))).scoped(tenant="acme", actor="author")
    given = {"to": "ann@example.org", "subject": "x", "text": "y", "from": "${input.sender}"}
    await engine.apply(document("email", given))
    for sender in ("shop@example.org, boss@bank.example", "boss@bank.example, shop@example.org"):
        work = (await engine.execute("one", {"sender": sender})).steps["work"]
        assert (work.error_code, mail.taken) == ("bad_with", [])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('"Shop, Ltd." <shop@example.org>', '"Shop, Ltd." <shop@example.org>'),
        ("J. R. Shop <shop@example.org>", '"J. R. Shop" <shop@example.org>'),
        ("Jürgen <shop@example.org>", "Jürgen <shop@example.org>"),
        ("shop@example.org,", "shop@example.org"),
    ],
)
async def test_headers_are_made_from_the_address_that_was_checked(
    make_engine: MakeEngine, mail: smtp.Mail, text: str, shown: str
) -> None:
    given = {"to": "ann@example.org", "subject": "x", "text": "y", "from": text}
    await run(await make_engine(**settings(mail)), "email", given)
    ((sender, _, message),) = mail.taken
    assert (sender, message["From"]) == ("shop@example.org", shown)
