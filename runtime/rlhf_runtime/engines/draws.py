"""Uniform draws that are a function of their keys, so no generator has a state to save or to share.

A counter-based generator (the idea of Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), with
the finaliser of splitmix64 (Steele, Lea, Flood 2014) as its mixing step, applied once per key.
"""

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = 0xFFFFFFFFFFFFFFFF


def uniforms(
    seed: int, prompts: npt.NDArray[np.int64], samples: npt.NDArray[np.int64], positions: int
) -> npt.NDArray[np.float64]:
    """Draws in [0, 1), [R, positions] float64: entry (r, t) is for (seed, prompt of r, sample of r, token t).

    Equal keys give equal draws on every machine, whatever else is in the batch.
    """
    state = np.zeros(len(prompts), np.uint64)
    for key in (np.uint64(seed & _MASK), np.asarray(prompts).astype(np.uint64), np.asarray(samples).astype(np.uint64)):
        state = _mix(state ^ key)
    state = _mix(state[:, None] ^ np.arange(positions, dtype=np.uint64))
    # The top 53 bits are what a float64 in [0, 1) holds exactly.
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """splitmix64: every bit of the result depends on every bit of the state; arithmetic is modulo 2**64."""
    state = state + _GOLDEN
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
