"""Phases of an iteration, and Megatron-Core's timers of messages between pipeline stages.

Measured and predicted iterations have the same phases.
"""

# Phases of one iteration. "straggler wait" is the time at the barriers before the gradient sync (in
# a pipeline with its drain) and before the parameter all-gather. "other" is the time that no timer
# covers. Phases of receiving and sending, and the embedding sync, are 0 without a pipeline.
# All-to-alls are 0 unless experts are on several ranks; the parameter all-gather is 0 without the
# distributed optimizer. Only runs with a choice of compression separate the tensor all-reduce from
# compute, and encode or decode messages.
PHASES = (
    "forward compute",
    "backward compute",
    "forward receive",
    "backward receive",
    "send",
    "forward all-to-all",
    "backward all-to-all",
    "tensor all-reduce",
    "encode",
    "decode",
    "straggler wait",
    "embedding sync",
    "gradient sync",
    "optimizer",
    "parameter all-gather",
    "other",
)

# Phases in which a GPU computes.
COMPUTING = ("forward compute", "backward compute", "optimizer")

# One timer for each kind of call in the 1F1B schedule. A call that sends and receives has one
# timer for both.
P2P_TIMERS = (
    "forward-recv",
    "forward-send",
    "backward-recv",
    "backward-send",
    "forward-send-backward-recv",
    "backward-send-forward-recv",
)

# Timers that each phase of messages adds up.
MESSAGE_PHASES = {
    "forward receive": ("forward-recv", "backward-send-forward-recv"),
    "backward receive": ("backward-recv", "forward-send-backward-recv"),
    "send": ("forward-send", "backward-send"),
}
# Phases that the papers' timers count as communication, and all-to-alls between experts, which the
# papers' models do not have.
COMMUNICATION = (
    "straggler wait",
    "gradient sync",
    "parameter all-gather",
    "forward all-to-all",
    "backward all-to-all",
)
