"""Resolves reviews."""

from tenuto.errors import InvalidInput, NotFound
from tenuto.kernel import facts as f
from tenuto.kernel.decide.open_reviews import not_open
from tenuto.kernel.events import NULL, Resolution
from tenuto.values.codec import encode
from tenuto.values.names import check_one_of

from .context import EngineContext, check_again, check_reason, refusal


class ReviewCommands:
    """Resolves everything that waits for a person, including dead letters."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context

    async def resolve(
        self, review_id: str, resolution: Resolution, *, reason: str = "", result: object = None, again: bool = False
    ) -> None:
        """Resolves a review. `retry` on a dead letter starts the next run of its execution.

        Every resolution except `approved` and `rejected` needs a reason.
        """
        check_one_of(resolution, Resolution, "/resolution")
        if again and resolution != "retry":
            raise InvalidInput.at(
                "/again", "without_retry", "`again` repeats an effect, so it needs the resolution `retry`"
            )
        if resolution not in ("approved", "rejected"):
            check_reason(reason)
        execution_id = review_id.rpartition(".")[0]
        if not execution_id:
            raise NotFound(f"There is no review {review_id!r}.")
        context = self._context
        context.scope.require("approvals:write", "dlq:write")
        if again:
            context.scope.require("effects:again")
        reading = await context.read_state(execution_id)
        review = reading.state.reviews.get(review_id)
        if review is None:
            raise refusal(not_open(reading.state, review_id))
        context.scope.require("dlq:write" if review.kind == "dead_letter" else "approvals:write")
        if review.kind == "dead_letter" and resolution == "retry":
            check_again(again=again, start=None)
            await context.check_retry(reading, None, again=False, reason=reason)
            run = reading.state.run  # the run that the dead letter is about
            await context.command(
                execution_id, f.Retry(at=context.now, actor=context.scope.actor, reason=reason, run=run)
            )
            return
        given = NULL if result is None else encode(result, where="result")
        await context.decide(reading, review, resolution, reason, given, again=again)
