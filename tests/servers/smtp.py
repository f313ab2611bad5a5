"""A mail server for tests: speaks enough SMTP to take messages, and refuses or hangs up where it is told to."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email import message_from_bytes
from email.message import Message
from email.policy import default
from typing import NamedTuple


class Taken(NamedTuple):
    sender: str
    recipients: list[str]
    message: Message


class Mail:
    """`answers` replace the usual answer to a command (`RCPT bob@example.org`, `DATA`, `.`), once each.

    An empty answer hangs up. `login` is what was sent with AUTH.
    """

    def __init__(self, *, extensions: tuple[str, ...] = ()) -> None:
        self.port = 0
        self.taken: list[Taken] = []
        self.answers: dict[str, str] = {}
        self.login: list[str] = []
        self._extensions = extensions

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._converse(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sender, recipients = "", list[str]()
        writer.write(b"220 here\r\n")
        while line := (await reader.readline()).decode().strip():
            command = line.upper().partition(" ")[0]
            address = line.partition("<")[2].partition(">")[0]
            usual = "250 fine"
            match command:
                case "EHLO":
                    usual = "\r\n".join(f"250-{name}" for name in ("here", *self._extensions)) + "\r\n250 8BITMIME"
                case "AUTH":
                    self.login.append(line)
                    usual = "235 welcome"
                case "MAIL":
                    sender = address
                case "RCPT":
                    answer = self.answers.get(f"RCPT {address}", usual)
                    recipients += [address] if answer == usual else []
                case "DATA":
                    usual = "354 go on"
                case "QUIT":
                    usual = "221 bye"
            answer = self.answers.pop(f"{command} {address}".strip(), usual)
            if not answer:
                return
            writer.write(f"{answer}\r\n".encode())
            await writer.drain()
            if command == "DATA" and answer == usual:
                text = (await reader.readuntil(b"\r\n.\r\n"))[:-3].replace(b"\r\n..", b"\r\n.")
                answer = self.answers.pop(".", "250 taken")
                if not answer:
                    return
                if answer.startswith("250"):
                    self.taken.append(
                        Taken(sender, recipients, message_from_bytes(text.replace(b"\r\n", b"\n"), policy=default))
                    )
                writer.write(f"{answer}\r\n".encode())
                await writer.drain()


@asynccontextmanager
async def running(*, extensions: tuple[str, ...] = (), tls: ssl.SSLContext | None = None) -> AsyncIterator[Mail]:
    mail = Mail(extensions=extensions)
    listener = await asyncio.start_server(mail.serve, "127.0.0.1", 0, ssl=tls)
    async with listener:
        mail.port = listener.sockets[0].getsockname()[1]
        yield mail
