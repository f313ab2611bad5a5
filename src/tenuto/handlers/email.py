"""The built-in handler `email`: sends one message through the configured SMTP server.

The Message-ID is derived from the step's key, so every attempt sends the same one and mail systems can detect
duplicates. The server's reply decides the error class: 4xx is transient, 5xx is permanent. If the connection breaks
after the text was sent and before the server accepts it, the outcome is unknown.
"""

import asyncio
import smtplib
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP as SMTP_POLICY
from email.utils import formatdate
from typing import Final, TypedDict
from urllib.parse import SplitResult, unquote, urlsplit

from tenuto.authoring.context import SagaContext
from tenuto.errors import IndeterminateError, NonRetryableError, StepError, TransientError

from .given import Email, each, one_address
from .outgoing import bad_with, read_with
from .settings import HandlerSettings

TIMEOUT_S: Final = 30.0  # per reply of the server
_PORTS: Final = {"smtp": 587, "smtps": 465}


class EmailReceipt(TypedDict):
    """`refused` is the number of recipients that the server rejected while it accepted others."""

    message_id: str
    refused: int


async def call(given: object, ctx: SagaContext, settings: HandlerSettings) -> EmailReceipt:
    email = read_with(given, Email, "email")
    sender = _sender(email, ctx, settings)
    recipients = [_address_in(recipient, "to, cc and bcc") for recipient in email.recipients]
    if not recipients:
        raise bad_with("email", "`to`, `cc` and `bcc` are empty: name at least one recipient")
    message = _message(email, ctx.idempotency_key, sender)
    server = _server(settings.smtp_url)
    envelope = [recipient.addr_spec for recipient in recipients]
    sending = asyncio.ensure_future(asyncio.to_thread(_send, server, message, sender.addr_spec, envelope))
    try:
        refused = await asyncio.shield(sending)
    except asyncio.CancelledError:
        await asyncio.wait([sending])  # a thread cannot be stopped, and no other attempt may begin meanwhile
        if sending.exception() is None:
            return {"message_id": str(message["Message-ID"]), "refused": sending.result()}
        raise
    return {"message_id": str(message["Message-ID"]), "refused": refused}


def _sender(email: Email, ctx: SagaContext, settings: HandlerSettings) -> Address:
    """Returns the sender.

    A tenant's own definition must use the deployment's address, because all tenants share the server.
    """
    if email.sender is None:
        if not settings.mail_from:
            raise bad_with("email", "there is no sender: set `from`, or TENUTO_MAIL_FROM")
        return _address_in(settings.mail_from, "TENUTO_MAIL_FROM")
    sender = _address_in(email.sender, "from")
    if ctx.owner is None:
        return sender
    own = one_address(settings.mail_from)
    if own is None or sender.domain.lower() != own.domain.lower():
        text = "`from` must be of the same domain as TENUTO_MAIL_FROM in a definition that belongs to a tenant"
        raise NonRetryableError(text, code="sender_denied")
    return sender


def _address_in(text: str, where: str) -> Address:
    found = one_address(text)
    if found is None:
        raise bad_with("email", f"each address in `{where}` must be exactly one, such as `Ann <ann@example.org>`")
    return found


# -- The message -------------------------------------------------------------------------------------------------------


def _message(email: Email, key: str, sender: Address) -> EmailMessage:
    message = EmailMessage(policy=SMTP_POLICY)
    try:
        message["From"] = sender
        message["To"] = [_address_in(each_one, "to") for each_one in each(email.to)]
        if email.cc:
            message["Cc"] = [_address_in(each_one, "cc") for each_one in each(email.cc)]
        if email.reply_to is not None:
            message["Reply-To"] = _address_in(email.reply_to, "reply_to")
        message["Subject"] = email.subject
        message["Date"] = formatdate()
        message["Message-ID"] = f"<{key}@{sender.domain}>"
    except ValueError:  # a line break, which would start another header
        raise bad_with("email", "the subject has characters that a header may not have") from None
    message.set_content(email.text or "")
    if email.html is not None:
        message.add_alternative(email.html, subtype="html")
    return message


# -- SMTP --------------------------------------------------------------------------------------------------------------


def _server(url: str) -> SplitResult:
    if not url:
        text = "there is no SMTP server: set TENUTO_SMTP_URL where the worker runs, as in smtp://mail.example:587"
        raise NonRetryableError(text, code="smtp_missing")
    server = urlsplit(url)
    if server.scheme not in _PORTS or not server.hostname:
        raise NonRetryableError("TENUTO_SMTP_URL must be smtp://host:port or smtps://host:port", code="smtp_missing")
    return server


def _send(server: SplitResult, message: EmailMessage, sender: str, recipients: Sequence[str]) -> int:
    """Sends the message and returns the number of rejected recipients. Raises if all were rejected."""
    with _translated(TransientError, "smtp_connection"):
        connection = _connect(server)
    try:
        with _translated(TransientError, "smtp_connection"):
            refused = _address(connection, sender, recipients)
        with _translated(IndeterminateError, "smtp_connection"):
            code, _ = connection.data(message.as_bytes())
            if code != 250:
                raise _refusal(code, "the message")
        return refused
    finally:
        connection.close()


def _connect(server: SplitResult) -> smtplib.SMTP:
    host, port = server.hostname or "", server.port or _PORTS[server.scheme]
    if server.scheme == "smtps":
        context = ssl.create_default_context()
        connection: smtplib.SMTP = smtplib.SMTP_SSL(host, port, timeout=TIMEOUT_S, context=context)
    else:
        connection = smtplib.SMTP(host, port, timeout=TIMEOUT_S)
    try:
        _introduce(connection, server)
    except BaseException:
        connection.close()
        raise
    return connection


def _introduce(connection: smtplib.SMTP, server: SplitResult) -> None:
    connection.ehlo_or_helo_if_needed()
    if server.scheme == "smtp" and connection.has_extn("starttls"):
        connection.starttls(context=ssl.create_default_context())
        connection.ehlo()
    if server.username:
        if not isinstance(connection.sock, ssl.SSLSocket):
            text = "the SMTP server offers no encryption, and a password is not sent without it"
            raise NonRetryableError(text, code="smtp_plain")
        connection.login(unquote(server.username), unquote(server.password or ""))


def _address(connection: smtplib.SMTP, sender: str, recipients: Sequence[str]) -> int:
    code, _ = connection.mail(sender)
    if code != 250:
        raise _refusal(code, "the sender")
    codes = [connection.rcpt(recipient)[0] for recipient in recipients]
    refused = [code for code in codes if code not in (250, 251)]
    if len(refused) == len(codes):
        raise _refusal(min(refused), "all recipients")  # if any of them is temporary, a retry may succeed
    return len(refused)


def _refusal(code: int, what: str) -> StepError:
    """Returns the error for a reply. The server's text is left out, because it repeats addresses."""
    text = f"the SMTP server refused {what} with {code}"
    if code == 421 or 400 <= code < 500:
        return TransientError(text, code=f"smtp_{code}")
    return NonRetryableError(text, code=f"smtp_{code}")


@contextmanager
def _translated(kind: type[StepError], code: str) -> Iterator[None]:
    try:
        yield
    except smtplib.SMTPAuthenticationError as error:
        raise NonRetryableError("the SMTP server refused the credentials", code="smtp_credentials") from error
    except smtplib.SMTPResponseException as error:
        raise _refusal(error.smtp_code, "the conversation") from error
    except (smtplib.SMTPException, OSError) as error:
        raise kind(f"the SMTP server: {type(error).__name__}", code=code) from error
