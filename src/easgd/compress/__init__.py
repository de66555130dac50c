"""Compressed messages: a vector in fewer bytes, without accumulating errors.

    float32   4 bytes per element, exact
    bf16      2 bytes: 8 bits of mantissa, the range of float32
    int8      1 byte and a float32 scale per 1024 elements: x ≈ scale·code, scale = max|x|/127 in the block
    int4      half a byte and such a scale, max|x|/7: 7.94 times fewer bytes than float32
    int2      a quarter of a byte and two float32 per 1024 elements: x ≈ ±a or ±b; 15.5 times fewer
    topk      the largest fortieth of 65536 elements, an index and an int8 code each: 53.3 times fewer

A packed vector is one uint8 tensor, whatever the codec, and as long as the codec says: bytes of another length, or that
no encoder makes, are refused. A value that is not finite makes its block (for bf16, itself) decode to a value that is
not finite, so the receiver can refuse it; of a block of topk, the elements that were sent.

Two wrappers keep rounding errors from accumulating, one for each kind of message:

    `ErrorFeedback`  The sender adds the rounding error e of one message to the next: m̂ = Q(m + e), e ← m + e − m̂.
                     The sum of all messages sent equals the sum of those intended, up to one rounding.
    `DeltaCodec`     Both ends keep the receiver's value r; the message is the change Q(x − r), which both add to r.
                     The error shrinks with the change, and it is part of the next change.

A worker's message goes through `ErrorFeedback`. An elastic answer d needs neither: the center adds the rounded
d̂ = Q(α(x̂ − x̃)) and answers the same d̂, so Σxⁱ + x̃ is conserved, and the next difference contains the rounding error. An
answer x̃ (DOWNPOUR, ADMM) goes through `DeltaCodec`, which costs one more vector per worker at the center. Its rounding
never reaches the center, because the worker sends its change relative to the value that it received.

The elastic message is a position x, whose rounding must be small beside x − x̃: int8 is fine enough, int4, int2 and topk
are not (`Codec.coarse`). Their positions go through `DeltaCodec`, too: the first in float32, then changes. After an
answer both ends let r ← r − d̂, since they know that the worker will subtract d̂.
"""

from easgd.compress.blocks import BLOCK, Int2, Int4, Int8
from easgd.compress.codec import NAMES, BFloat16, Codec, Float32
from easgd.compress.memory import DeltaCodec, ErrorFeedback
from easgd.compress.topk import TopK

__all__ = [
    "BLOCK", "NAMES", "BFloat16", "Codec", "DeltaCodec", "ErrorFeedback", "Float32", "Int2", "Int4", "Int8", "TopK",
]  # fmt: skip
