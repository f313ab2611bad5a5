"""Handlers that go on though their executions are in other hands by now, and what they still know.

A process that was taken for dead may be in the middle of a step that is not safe to retry. To cancel that would leave
behind what nobody knows. Its handler comes to its end, and what it reports goes into the mailbox of the execution:
whoever owns that has the kernel judge it, and it applies as long as nothing else is known of the attempt.

Nothing is begun by a straggler. In this process no other attempt of its step begins before it has ended.
"""

import asyncio
from functools import partial

from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref
from tenuto.kernel.codec import encode_fact
from tenuto.runtime.executor import Job
from tenuto.runtime.executor.held_execution import Record
from tenuto.storage.tasks import Letter
from tenuto.views import Waiting

from .batched_writes import Gathering
from .held_executions import Keeper, Moved


class Straggling(Keeper):
    """A worker that hears its handlers out, whoever has their executions."""

    def _prepare_stragglers(self) -> None:
        self._stragglers: dict[str, dict[str, Job]] = {}  # by execution and path
        self._late_words = Gathering[Letter]("tenuto-late-words", self._send_late_words)

    def _under_way(self) -> list[Job]:
        stragglers = (job for jobs in self._stragglers.values() for job in jobs.values())
        return list(dict.fromkeys((*super()._under_way(), *stragglers)))

    def _forget_work(self, record: Record) -> list[Ref]:
        for ref, job in list(record.jobs.items()):
            if _matters(job) and job.begun and not job.stopped:
                del record.jobs[ref]
                record.zombies[ref.path] = job
        going_on = {path: job for path, job in record.zombies.items() if _matters(job)}
        if going_on:
            self._stragglers.setdefault(record.state.id, {}).update(going_on)
        return super()._forget_work(record)

    def _wait_for_stragglers(self, record: Record) -> None:
        """The execution is in hand again, with handlers of an earlier time still under way."""
        record.zombies.update(self._stragglers.get(record.state.id, {}))

    def _bury(self, record: Record, path: str) -> None:
        job, id = record.zombies[path], record.state.id
        super()._bury(record, path)
        jobs = self._stragglers.get(id, {})
        if jobs.get(path) is job:
            del jobs[path]
            if not jobs:
                del self._stragglers[id]
        for again in (self._records.get(id), self._visits.get(id)):
            if again is not None and again.zombies.get(path) is job:
                self._bury(again, path)

    def _park(self, record: Record, ref: Ref, why: Waiting) -> None:
        if record.is_guest or self._records.get(record.state.id) is record:
            super()._park(record, ref, why)

    def _finished(self, record: Record) -> None:
        super()._finished(record)
        if record.state.cancel is not None:
            for job in self._stragglers.get(record.state.id, {}).values():
                job.stop()  # somebody has called it off, and nothing that it could say counts any more

    # -- What they say -------------------------------------------------------------------------------------------------

    def _answer_for_certain(self, record: Record, ref: Ref, fact: f.Reported) -> None:
        if record.is_guest:
            self._answer(record, ref, fact)  # which is a letter as well
        elif self._records.get(record.state.id) is not record:
            self._say_late(record, fact)
        else:
            self._answer_or_say_late(record, fact)

    def _answer_or_say_late(self, record: Record, fact: f.Reported) -> None:
        """If it cannot be recorded because the execution is in other hands, those are told."""
        answered: asyncio.Future[f.Answer] = asyncio.get_running_loop().create_future()
        self._asked.setdefault(record, []).append(answered)
        answered.add_done_callback(partial(self._hear_fate, record, fact))

        def then(answer: f.Answer) -> None:
            if not answered.done():
                answered.set_result(answer)

        try:
            self.apply(record, fact, then=then)
        except BaseException:
            answered.cancel()
            raise

    def _hear_fate(self, record: Record, fact: f.Reported, answered: "asyncio.Future[f.Answer]") -> None:
        self._no_longer_asked(record, answered)
        if not answered.cancelled() and isinstance(answered.exception(), Moved):
            self._say_late(record, fact)

    def _say_late(self, record: Record, fact: f.Reported) -> None:
        self._late_words.add(Letter(self.environment.new_id(), record.state.id, encode_fact(fact)))

    async def _send_late_words(self, letters: list[Letter]) -> None:
        owners: set[str | None] = set()
        for letter in letters:  # the same id is put there once: it may be said again
            posted = await self._store.post(letter.id, letter.execution, letter.body)
            if posted is not None:
                owners.add(posted[1])
        self._tell_owners(owners)


def _matters(job: Job) -> bool:
    """Whether what comes of it has to be known: steps that are safe to retry are made again."""
    return job.attempt.role.begins and not job.attempt.role.dispatches
