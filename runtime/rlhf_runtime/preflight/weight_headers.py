"""Names and shapes of a model's stored tensors, from the headers of its safetensors files."""

import json
import struct
from pathlib import Path

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def stored_shapes(folder: Path) -> dict[str, tuple[int, ...]] | None:
    """Shape of every stored tensor by name; None where that is not to be had: weights that are pickled, or that lie
    elsewhere and have not been fetched.

    Raises ValueError naming the file whose header cannot be read, or whose tensors are not all there.
    """
    if (folder / SINGLE).is_file():
        shards = [folder / SINGLE]
    elif (folder / INDEX).is_file():
        names = json.loads((folder / INDEX).read_bytes())["weight_map"].values()
        shards = [folder / name for name in sorted(set(names))]
    else:
        return None
    if not all(shard.is_file() for shard in shards):
        return None
    shapes: dict[str, tuple[int, ...]] = {}
    for shard in shards:
        shapes |= _shapes(shard)
    return shapes


def _shapes(shard: Path) -> dict[str, tuple[int, ...]]:
    with shard.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        try:
            header = json.loads(file.read(length))
            entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
            shapes = {name: tuple(entry["shape"]) for name, entry in entries.items()}
            end = 8 + length + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise ValueError(f"{shard}: its header is not that of a safetensors file: {error}") from error
    size = shard.stat().st_size
    if size < end:
        raise ValueError(f"{shard} has {size} bytes, expected {end} by its header: it is cut off")
    return shapes
