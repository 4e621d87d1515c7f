"""Pipeline stage of T5; Megatron-Core's own T5 has no pipeline since release 0.14."""

from collections.abc import Callable
from copy import copy
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.enums import ModelType
from megatron.core.models.common.embeddings.language_model_embedding import LanguageModelEmbedding
from megatron.core.models.common.language_module.language_module import LanguageModule
from megatron.core.models.T5.t5_model import T5LMHead, t5_position_ids
from megatron.core.transformer.transformer_block import TransformerBlock
from megatron.core.transformer.transformer_config import TransformerConfig

from repro.catalog.models.papers import Shape
from repro.catalog.models.stages import encoder_stages, layers_per_stage, tokens_to_next_stage
from repro.train.megatron.attention import LayerSpecs


class T5Stage(LanguageModule):  # type: ignore[misc]
    """Layers of one stage: the first half of the stages encode, the second half decode.

    A stage receives one tensor and sends one. Encoder stages send the encoder's hidden states
    (encoder sequence, batch, hidden). Decoder stages send those of the finished encoder and their
    own, concatenated along the sequence, because each decoder layer attends to the encoder's
    output. Gradients take the same route back.

    The first stage, the first decoder stage and the last one hold copies of the word embeddings,
    the first two also of the position embeddings. All copies start as the first stage's, and
    Megatron-Core adds their gradients up in the groups that `repro.train.megatron.groups` makes.

    Parameters
    ----------
    config : TransformerConfig
        Configuration with more than one pipeline stage.
    shape : Shape
        Shape of the whole model.
    specs : LayerSpecs
        Specifications of the layers.

    Raises
    ------
    ReproError
        The layers do not divide evenly into stages.
    """

    def __init__(self, config: TransformerConfig, shape: Shape, specs: LayerSpecs) -> None:
        super().__init__(config=config)
        stages, stage = self.pp_group.size(), self.pp_group.rank()
        first_decoder = encoder_stages(stages)
        layers = layers_per_stage("t5", shape.layers, stages)
        # Attributes that Megatron-Core's schedule and embedding sync read.
        self.model_type = ModelType.encoder_or_decoder
        self.share_embeddings_and_output_weights = True
        self.pre_process = stage in (0, first_decoder)
        self.post_process = stage == stages - 1
        self._encodes = stage < first_decoder
        self._encoder_tokens = shape.sequence_length
        self._received: torch.Tensor | None = None

        if self.pre_process:
            self.embedding = LanguageModelEmbedding(
                config, shape.vocabulary_size, shape.sequence_length
            )
        # The layer numbers of a stack start at one, and this module is its input on every stage.
        alone = copy(config)
        alone.pipeline_model_parallel_size = 1
        if self._encodes:
            self.encoder = TransformerBlock(
                alone,
                specs.t5_encoder(layers),
                post_process=stage == first_decoder - 1,
            )
        else:
            self.decoder = TransformerBlock(
                alone,
                specs.t5_decoder(layers),
                post_process=self.post_process,
            )
        if self.post_process:
            self.lm_head = T5LMHead(
                config,
                parallel_output=True,
                vocab_size=shape.vocabulary_size,
                pre_process=self.pre_process,
                share_embeddings_and_output_weights=True,
            )
            self.output_layer = self.lm_head.output_layer
        if self.pre_process or self.post_process:
            self._copy_embeddings(stage)

    @property
    def position_embeddings(self) -> torch.nn.Embedding:
        """Position embeddings, on a stage that embeds tokens."""
        embeddings: torch.nn.Embedding = self.embedding.position_embeddings
        return embeddings

    def _copy_embeddings(self, stage: int) -> None:
        """Copy the first stage's embeddings to this stage; gradient norms count only the first."""
        if self.pre_process and stage > 0:
            self.embedding.zero_parameters()
        # This adds the copies of the word embeddings, and marks them on a stage with logits only.
        self.setup_embeddings_and_output_layer()
        if self.pre_process:
            weight = self.position_embeddings.weight
            weight.data = weight.data.cuda()
            dist.all_reduce(weight.data, group=self.pg_collection.pos_embd)

    def set_input_tensor(self, received: list[torch.Tensor | None]) -> None:
        """Take the previous stage's tensor; the schedule calls this before each forward pass."""
        (self._received,) = received

    def forward(
        self,
        encoder_ids: torch.Tensor,
        decoder_ids: torch.Tensor,
        encoder_mask: torch.Tensor,
        decoder_mask: torch.Tensor,
        cross_mask: torch.Tensor,
        lm_labels: torch.Tensor,
    ) -> torch.Tensor:
        """Return the tensor for the next stage, or on the last one token losses (batch, sequence).

        The arguments are those of Megatron-Core's `T5Model`.
        """
        if self._encodes:
            hidden = self._embed(encoder_ids) if self.pre_process else self._received
            encoded: torch.Tensor = self.encoder(hidden_states=hidden, attention_mask=encoder_mask)
            return encoded
        assert self._received is not None
        encoded = self._received[: self._encoder_tokens]
        if self.pre_process:
            hidden = self._embed(decoder_ids)
        else:
            hidden = self._received[self._encoder_tokens :]
        decoded = self.decoder(
            hidden_states=hidden,
            attention_mask=decoder_mask,
            context=encoded,
            context_mask=cross_mask,
        )
        if not self.post_process:
            return torch.cat([encoded, decoded])
        logits = self.lm_head(decoded, self.shared_embedding_or_output_weight())
        loss: torch.Tensor = self.compute_language_model_loss(lm_labels, logits)
        return loss

    def _embed(self, ids: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.embedding(input_ids=ids, position_ids=t5_position_ids(ids))
        return embedded


def t5_shapes(shape: Shape, micro_batch_size: int, stages: int, stage: int) -> Callable[..., Any]:
    """Return the schedule's `adjust_tensor_shapes_fn`: shapes that a stage receives and sends."""

    def handed_on(by: int) -> list[tuple[int, int, int]]:
        tokens = tokens_to_next_stage("t5", shape, stages, by)
        return [(tokens, micro_batch_size, shape.hidden_size)]

    return lambda received, sent: (handed_on(stage - 1), handed_on(stage))
