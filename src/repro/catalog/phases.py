"""The phases of an iteration, and Megatron-Core's timers of messages between pipeline stages.

Measured and predicted iterations are divided alike.
"""

# Phases of one iteration. "straggler wait" is the time a rank waits at the barriers in front of the
# gradient sync, in a pipeline with its drain, and of the parameter all-gather; "other" is what no
# timer claims. Receiving, sending and the sync of the embeddings that several stages hold take no
# time without a pipeline, all-to-alls none without experts on several ranks, and the parameter
# all-gather none without the distributed optimizer. Tensor all-reduces are told from computing, and
# messages encoded and decoded, in runs with a choice of compression only.
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

# What a GPU computes in.
COMPUTING = ("forward compute", "backward compute", "optimizer")

# One timer for each kind of call in the 1F1B schedule. A call that sends and receives is one entry:
# its timer holds both.
P2P_TIMERS = (
    "forward-recv",
    "forward-send",
    "backward-recv",
    "backward-send",
    "forward-send-backward-recv",
    "backward-send-forward-recv",
)

# The timers that each phase of messages consists of.
MESSAGE_PHASES = {
    "forward receive": ("forward-recv", "backward-send-forward-recv"),
    "backward receive": ("backward-recv", "forward-send-backward-recv"),
    "send": ("forward-send", "backward-send"),
}
# What the papers' timers show as communication: waiting for stragglers, and the wire; and exchanges
# between experts, which the papers' models do not have.
COMMUNICATION = (
    "straggler wait",
    "gradient sync",
    "parameter all-gather",
    "forward all-to-all",
    "backward all-to-all",
)
