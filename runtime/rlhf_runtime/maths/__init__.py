"""The arithmetic of PPO and GRPO as pure functions of tensors; nothing here knows of models, ranks or files.

Shape suffixes
    b  samples of a micro-batch
    t  completion tokens, right-padded
    l  all tokens of a row: prompt left-padded, then completion right-padded
    v  vocabulary
    n  samples of any number of whole groups, the samples of a group side by side

Log-probabilities, KL and entropy are in nats and are computed in fp32 whatever dtype comes in; advantages and
whitening are computed in fp64 and given as fp32. Masks are bool and *select*, before any arithmetic: a NaN at a
masked position reaches neither a result nor a gradient, both of which `x * mask` would let through.

A loss here is one micro-batch's *share*: a sum divided by a count of the whole optimiser step (`aggregation`).
Shares, and their gradients, therefore add up to the same step for any split into micro-batches and ranks.
"""
