from .settings import Layout


def update(layout: Layout) -> None: ...
