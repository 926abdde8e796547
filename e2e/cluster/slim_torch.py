#!/usr/bin/env python3
"""Makes the CUDA build of torch, the only one on the package index, fit for tests on machines without a GPU.

The e2e image is built, stored and loaded on small machines, and four fifths of the full one are GPU libraries
that nothing there would ever call. Two steps, both used by the Dockerfile with SLIM=1:

- `requirements FILE` prints a locked requirements file without the packages that only a GPU would load.
- `libraries SITE_PACKAGES` lets torch's own libraries load without those packages, and cuts the compiled GPU
  code out of them. Only load-time tables change: needed libraries that are gone are no longer named, and
  functions of theirs that stay unresolved become weak, i.e. null. They are reached on a GPU only.
"""

import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# torch's CPU library itself is linked with these two, and they are small.
_KEPT = ("nvidia-cuda-runtime", "nvidia-cuda-cupti")
_GPU_ONLY = re.compile(r"(nvidia-|cuda-|triton\b)")
_GPU_LIBRARY = re.compile(rb"lib(cu|nv|nccl)")
_KEPT_LIBRARY = re.compile(rb"lib(cudart|cupti)\.so")

_PT_LOAD, _PT_DYNAMIC, _PT_NOTE = 1, 2, 4
_DT_NEEDED, _DT_STRTAB, _DT_VERNEED, _DT_VERNEEDNUM = 1, 5, 0x6FFFFFFE, 0x6FFFFFFF
_SHT_DYNSYM = 11
_STB_GLOBAL, _STB_WEAK = 1, 2
_VER_FLG_WEAK = 2
_PAGE = 4096


def cpu_requirements(text: str) -> str:
    """Entries start at the margin; their hashes and comments are indented."""
    kept, keep = [], True
    for line in text.splitlines(keepends=True):
        if line[:1].isalnum():
            keep = line.startswith(_KEPT) or not _GPU_ONLY.match(line)
        if keep:
            kept.append(line)
    return "".join(kept)


@dataclass
class Segment:
    """A program header of a 64-bit ELF file, in the file's own order of fields."""

    kind: int
    flags: int
    offset: int
    address: int
    physical: int
    file_size: int
    memory_size: int
    alignment: int

    FORMAT = "<IIQQQQQQ"

    def packed(self) -> bytes:
        return struct.pack(
            self.FORMAT,
            self.kind,
            self.flags,
            self.offset,
            self.address,
            self.physical,
            self.file_size,
            self.memory_size,
            self.alignment,
        )


class Library:
    """A shared library whose load-time tables are edited in place."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        (self._segments_at,) = struct.unpack_from("<Q", data, 32)
        (count,) = struct.unpack_from("<H", data, 56)
        size = struct.calcsize(Segment.FORMAT)
        places = range(self._segments_at, self._segments_at + count * size, size)
        self.segments = [Segment(*struct.unpack_from(Segment.FORMAT, data, place)) for place in places]

    def forget_gpu_libraries(self) -> bool:
        """Whether it named any. The names are replaced by the C library's, which is loaded anyway."""
        needed = [(place, value) for place, tag, value in self._dynamic() if tag == _DT_NEEDED]
        gone = [place for place, value in needed if _is_gone(self._string(value))]
        if not gone:
            return False
        libc = next(value for _, value in needed if self._string(value) == b"libc.so.6")
        for place in gone:
            struct.pack_into("<Q", self.data, place + 8, libc)
        self._forget_versions(libc)
        self._weaken_undefined()
        return True

    def cut_section(self, name: bytes) -> None:
        """Removes a section's whole pages from the file, and leaves a hole where they were in memory."""
        section = next((s for s in self._sections() if s[0] == name), None)
        if section is None:
            return
        _, _, address, _, size = section
        start, end = -(-address // _PAGE) * _PAGE, (address + size) // _PAGE * _PAGE
        index = next(i for i, s in enumerate(self.segments) if _loads(s, address))
        before = self.segments[index]
        cut_from, cut_to = before.offset + start - before.address, before.offset + end - before.address
        after = Segment(**vars(before))
        after.offset, after.address, after.physical = cut_to, end, end
        after.file_size = after.memory_size = before.address + before.file_size - end
        before.file_size = before.memory_size = start - before.address
        self.segments.insert(index + 1, after)
        # There is room for as many headers as before; the note, a build id, is the one that nobody misses.
        self.segments.remove(next(s for s in self.segments if s.kind == _PT_NOTE))
        for segment in self.segments:
            if segment.offset >= cut_to:
                segment.offset -= cut_to - cut_from
        del self.data[cut_from:cut_to]
        self._write_headers()

    def _write_headers(self) -> None:
        """Loaders read segments; the table of sections, now wrong, is dropped."""
        headers = b"".join(segment.packed() for segment in self.segments)
        self.data[self._segments_at : self._segments_at + len(headers)] = headers
        struct.pack_into("<Q", self.data, 40, 0)
        struct.pack_into("<HH", self.data, 60, 0, 0)

    def _forget_versions(self, libc: int) -> None:
        tags = {tag: value for _, tag, value in self._dynamic()}
        if _DT_VERNEED not in tags:
            return
        place = self._offset(tags[_DT_VERNEED])
        for _ in range(tags[_DT_VERNEEDNUM]):
            _, count, file, aux, following = struct.unpack_from("<HHIII", self.data, place)
            if _is_gone(self._string(file)):
                struct.pack_into("<I", self.data, place + 4, libc)
                self._weaken_versions(place + aux, count)
            place += following

    def _weaken_versions(self, place: int, count: int) -> None:
        for _ in range(count):
            _, flags, _, _, following = struct.unpack_from("<IHHII", self.data, place)
            struct.pack_into("<H", self.data, place + 4, flags | _VER_FLG_WEAK)
            place += following

    def _weaken_undefined(self) -> None:
        """All that is undefined: a weak symbol that some library does define is still found."""
        _, _, _, offset, size = next(s for s in self._sections() if s[1] == _SHT_DYNSYM)
        for place in range(offset, offset + size, 24):
            _, info, _, section = struct.unpack_from("<IBBH", self.data, place)
            if section == 0 and info >> 4 == _STB_GLOBAL:
                self.data[place + 4] = _STB_WEAK << 4 | info & 15

    def _dynamic(self) -> Iterator[tuple[int, int, int]]:
        segment = next(s for s in self.segments if s.kind == _PT_DYNAMIC)
        for place in range(segment.offset, segment.offset + segment.file_size, 16):
            tag, value = struct.unpack_from("<QQ", self.data, place)
            yield place, tag, value

    def _sections(self) -> Iterator[tuple[bytes, int, int, int, int]]:
        """Name, type, address, offset and size of each."""
        (table,) = struct.unpack_from("<Q", self.data, 40)
        size, count, names = struct.unpack_from("<HHH", self.data, 58)
        headers = [struct.unpack_from("<IIQQQQ", self.data, table + i * size) for i in range(count)]
        for name, kind, _, address, offset, length in headers:
            start = headers[names][4] + name
            yield bytes(self.data[start : self.data.index(0, start)]), kind, address, offset, length

    def _string(self, at: int) -> bytes:
        table = next(value for _, tag, value in self._dynamic() if tag == _DT_STRTAB)
        start = self._offset(table) + at
        return bytes(self.data[start : self.data.index(0, start)])

    def _offset(self, address: int) -> int:
        segment = next(s for s in self.segments if _loads(s, address))
        return address - segment.address + segment.offset


def _loads(segment: Segment, address: int) -> bool:
    inside = segment.address <= address < segment.address + segment.file_size
    return segment.kind == _PT_LOAD and inside


def _is_gone(name: bytes) -> bool:
    return bool(_GPU_LIBRARY.match(name)) and not _KEPT_LIBRARY.match(name)


def slim_libraries(site_packages: Path) -> None:
    for path in sorted((site_packages / "torch" / "lib").glob("*.so")):
        before = path.stat().st_size
        library = Library(path.read_bytes())
        if not library.forget_gpu_libraries():
            continue
        library.cut_section(b".nv_fatbin")
        path.write_bytes(library.data)
        print(f"{path.name}: {before >> 20} -> {len(library.data) >> 20} MiB")


def main() -> None:
    match sys.argv[1:]:
        case ["requirements", path]:
            print(cpu_requirements(Path(path).read_text()), end="")
        case ["libraries", path]:
            slim_libraries(Path(path))
        case _:
            raise SystemExit("usage: slim_torch.py requirements FILE | libraries SITE_PACKAGES")


if __name__ == "__main__":
    main()
