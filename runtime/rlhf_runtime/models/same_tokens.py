"""Whether two models mean the same by the same token ids."""

import json
from typing import Any

#: Text whose pieces depend on how a tokenizer divides and normalises it before it looks tokens up.
_PROBE = "It isn't 12+345=357; \tÄpfel, 中文, <b>x</b>\n\n  End."


def difference(tokenizer: Any, other: Any) -> str | None:
    """How `other` differs from `tokenizer`, in words; None if both make the same ids of the same text.

    Vocabularies of equal size may still hold other tokens, and equal tokens may be merged in another order.
    """
    ours, theirs = tokenizer.get_vocab(), other.get_vocab()
    if len(ours) != len(theirs):
        return f"it has {len(theirs)} tokens, the actor's {len(ours)}"
    if ours != theirs:
        by_id = {number: token for token, number in theirs.items()}
        changed = [(number, token) for token, number in ours.items() if by_id.get(number) != token]
        number, token = min(changed)
        there = repr(by_id[number]) if number in by_id else "nothing"
        return f"{len(changed)} of {len(ours)} ids differ, such as {number}: {there} there, {token!r} in the actor's"
    if _merges(tokenizer) != _merges(other):
        return "it has the actor's tokens, but merges them in another order"
    if _ids(tokenizer, _PROBE) != _ids(other, _PROBE):
        return f"it has the actor's tokens, but reads a text such as {_PROBE!r} in others of them"
    return None


def _merges(tokenizer: Any) -> Any:
    """The order of merges of a fast tokenizer that has one."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return json.loads(backend.to_str())["model"].get("merges") if backend is not None else None


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
