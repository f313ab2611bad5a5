"""An app with a step for a queue: `tenuto worker --app tests.cli.studio`."""

from tenuto import Saga, saga, step


@saga("film", output="render")
class Film(Saga[str, str]):
    @step(queue="gpu")
    async def render(self, name: str) -> str:
        return f"{name}.mp4"


ALL = [Film()]
