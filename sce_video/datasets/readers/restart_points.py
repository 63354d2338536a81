"""Whether decoding can start at a packet that its container calls a key frame.

Containers and FFmpeg also flag the beginning of an intra refresh: a picture of inter-predicted
blocks, from which on a column of intra blocks moves through the frames. A decoder that starts there
returns unfinished frames until the column has passed, and slightly different ones after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

_START_CODE = b"\0\0\1"
_HEAD_BYTES = 4096  # of a packet or unit, in which a header is looked for
_RECOVERY_POINT = 6  # payloadType


def is_restart_point(codec: str, extradata: bytes, packet: bytes | memoryview) -> bool:
    """Whether all frames displayed from a key packet on are the same if decoding starts there.

    True for:

    - h264: an IDR picture, or a recovery point (SEI) after zero frames, as in open GOPs;
    - HEVC: an IDR, CRA or BLA picture;
    - MPEG-1, MPEG-2, MPEG-4: an intra picture;
    - other codecs: always, the container's flag is trusted.

    Args:
        codec: FFmpeg's name of it.
        extradata: The codec's header, which says how NAL units are separated.
        packet: A packet that the container flags as a key frame.
    """
    test = _TESTS.get(codec)
    return test is None or test(packet, extradata)


def holds_idr(extradata: bytes, packet: bytes | memoryview) -> bool:
    """Whether an h264 packet holds an IDR picture, before which nothing is referred to."""
    return any(unit[0] & 31 == 5 for unit in _h264_units(packet, extradata))


def _h264_units(packet: bytes | memoryview, extradata: bytes) -> Iterator[bytes | memoryview]:
    size = (extradata[4] & 3) + 1 if len(extradata) > 4 and extradata[0] == 1 else 0
    return _units(packet, size)


def _h264(packet: bytes | memoryview, extradata: bytes) -> bool:
    recovery: int | None = None
    for unit in _h264_units(packet, extradata):
        kind = unit[0] & 31
        if kind == 5:
            return True
        if kind in (1, 2):
            return recovery == 0
        if kind == 6 and recovery is None:
            recovery = _recovery_frames(bytes(unit[1:_HEAD_BYTES]))
    return False


def _hevc(packet: bytes | memoryview, extradata: bytes) -> bool:
    size = (extradata[21] & 3) + 1 if len(extradata) > 22 and extradata[0] == 1 else 0
    for unit in _units(packet, size):
        kind = unit[0] >> 1 & 63
        if kind < 32:  # the first slice
            return 16 <= kind <= 23
    return False


def _mpeg2(packet: bytes | memoryview, extradata: bytes) -> bool:
    data = bytes(packet[:_HEAD_BYTES])
    at = data.find(_START_CODE + b"\x00")  # picture_start_code
    return 0 <= at < len(data) - 5 and data[at + 5] >> 3 & 7 == 1  # picture_coding_type


def _mpeg4(packet: bytes | memoryview, extradata: bytes) -> bool:
    data = bytes(packet[:_HEAD_BYTES])
    at = data.find(_START_CODE + b"\xb6")  # vop_start_code
    return 0 <= at < len(data) - 4 and data[at + 4] >> 6 == 0  # vop_coding_type


_TESTS: dict[str, Callable[[bytes | memoryview, bytes], bool]] = {
    "h264": _h264,
    "hevc": _hevc,
    "mpeg1video": _mpeg2,
    "mpeg2video": _mpeg2,
    "mpeg4": _mpeg4,
}


def _units(packet: bytes | memoryview, length_size: int) -> Iterator[bytes | memoryview]:
    """The NAL units of a packet: each after its length, or (size 0) after a start code."""
    if length_size:
        position = 0
        while position + length_size < len(packet):
            begin = position + length_size
            position = begin + int.from_bytes(packet[position:begin], "big")
            if position > begin:
                yield packet[begin:position]
        return
    for unit in bytes(packet).split(_START_CODE)[1:]:
        if unit:
            yield unit


def _recovery_frames(sei: bytes) -> int | None:
    """``recovery_frame_cnt`` of an SEI unit; None if it holds no recovery point."""
    sei, position = sei.replace(b"\0\0\3", b"\0\0"), 0  # without emulation prevention
    while position + 2 <= len(sei):
        kind, position = _sei_number(sei, position)
        size, position = _sei_number(sei, position)
        if kind == _RECOVERY_POINT:
            return _exp_golomb(sei[position : position + size])
        position += size
    return None


def _sei_number(sei: bytes, position: int) -> tuple[int, int]:
    """A payload type or size at a position (bytes of 255 are added up), and the position after."""
    value = 0
    while position < len(sei) and sei[position] == 255:
        value, position = value + 255, position + 1
    return (value + sei[position], position + 1) if position < len(sei) else (value, position)


def _exp_golomb(data: bytes) -> int | None:
    """The first ue(v) of some bytes; None if they end before it does."""
    bits = "".join(f"{byte:08b}" for byte in data)
    zeros = bits.find("1")
    if zeros < 0 or len(bits) < 2 * zeros + 1:
        return None
    return int(bits[zeros : 2 * zeros + 1], 2) - 1
