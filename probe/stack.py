"""Heads that train side by side: members of one family, their parameters stacked."""

import copy
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probe.aggregators import Features
from probe.head import Head
from probe.ranks import MOMENTUM, batch_norm, world_size
from store import BeyondClsError


class Stack:
    """M heads that differ in the values of their parameters alone, computed together.

    Args:
        heads: with the same aggregator and options, normalisation and number of classes.
        device: where they compute.
        vectors: name of the precomputed vectors of the aggregator in a batch; only for aggregators without parameters.

    Attributes:
        parameters: name in a head -> [M, ...], leaves of automatic differentiation.
        running: mean and variance of the vectors, [M, W]; empty without batch normalisation.
    """

    def __init__(self, heads: Sequence[Head], device: str | torch.device = "cpu", vectors: str | None = None):
        self.template = copy.deepcopy(heads[0]).to(device)
        self.template.requires_grad_(False)
        self.vectors = vectors
        self.batch_norm = isinstance(heads[0].norm, nn.BatchNorm1d)
        named = [dict(head.named_parameters()) for head in heads]
        self.parameters = {n: torch.stack([p[n].detach() for p in named]).to(device).requires_grad_() for n in named[0]}
        self.running = {
            name: torch.stack([getattr(head.norm, f"running_{name}") for head in heads]).to(device)
            for name in (("mean", "var") if self.batch_norm else ())
        }

    def __len__(self) -> int:
        """Number of members."""
        return len(self.parameters["classifier.weight"])

    def __call__(
        self, features: Features, training: bool = False
    ) -> tuple[Float[Tensor, "M B K"], Float[Tensor, "M B T"] | Float[Tensor, "B T"] | None]:
        """Logits of each member, and the weights over patches: without the first axis where all members' are the same.

        Args:
            features: already normalised by the encoder's final norm, for heads that use it.
            training: normalise by the batch, and update the running mean and variance.

        Raises:
            BeyondClsError: there is a single image, which has no variance for batch normalisation.
        """
        vector, weights = self._pooled(features, training)
        if self.batch_norm:
            vector = self._normalise(vector, training)
        weight, bias = self.parameters["classifier.weight"], self.parameters["classifier.bias"]
        # Images last in memory: what runs over classes then takes many images at a time.
        if vector.ndim == 2:  # the same for all members: one matrix product
            logits = torch.addmm(bias.flatten()[:, None], weight.flatten(0, 1), vector.T)
            return logits.unflatten(0, weight.shape[:2]).mT, weights
        return torch.baddbmm(bias[:, :, None], weight, vector.mT).mT, weights

    def _pooled(self, features: Features, training: bool) -> tuple[Tensor, Tensor | None]:
        """Vectors [M, B, W], or [B, W] where the aggregator has no parameters."""
        if self.vectors is not None:
            return features[self.vectors], None
        aggregator = self.template.aggregator.train(training)
        if not aggregator.trainable:
            with torch.no_grad():
                return aggregator(features)
        prefix = "aggregator."
        parameters = {name.removeprefix(prefix): p for name, p in self.parameters.items() if name.startswith(prefix)}
        return aggregator.pool_many(parameters, features)

    def _normalise(self, vector: Tensor, training: bool) -> Tensor:
        """As BatchNorm1d(affine=False) of each member by itself."""
        eps: float = self.template.norm.eps  # type: ignore[assignment]
        if not training:
            mean, variance = self.running["mean"], self.running["var"]
            # Vectors that are the same for all members: all have seen the same.
            mean, variance = (mean[:1], variance[:1]) if vector.ndim == 2 else (mean[:, None], variance[:, None])
            return (vector - mean) * (variance + eps).rsqrt()
        n = vector.shape[-2] * world_size()
        if n < 2:
            raise BeyondClsError("1 image to train on at once, expected 2 or more: batch normalisation needs a variance")
        normalised, mean, variance = batch_norm(vector, eps)
        for name, value in (("mean", mean), ("var", variance * (n / (n - 1)))):
            self.running[name].lerp_(value.squeeze(-2), MOMENTUM)
        return normalised

    def keep(self, members: Sequence[int]) -> None:
        """Keep only some of the members."""
        self.parameters = {n: p.detach()[members].clone().requires_grad_() for n, p in self.parameters.items()}
        self.running = {name: values[members] for name, values in self.running.items()}

    def state(self) -> dict[str, Tensor]:
        """The tensors that a checkpoint has to hold."""
        return {n: p.detach() for n, p in self.parameters.items()} | self.statistics

    @property
    def statistics(self) -> dict[str, Tensor]:
        """State other than parameters: the running statistics of each member, and the aggregator's buffers, shared by all."""
        running = {f"running.{name}": values for name, values in self.running.items()}
        buffers = self.template.aggregator.state_dict(prefix="aggregator.")
        return running | {name: values for name, values in buffers.items() if name not in self.parameters}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a `state` of the same number of members."""
        for name, values in self.state().items():
            values.copy_(state[name])

    @torch.no_grad()
    def head(self, member: int) -> Head:
        """One member as a head, on the CPU, in evaluation mode."""
        head = copy.deepcopy(self.template).cpu()
        for name, parameter in head.named_parameters():
            parameter.copy_(self.parameters[name][member])
        for name, values in self.running.items():
            getattr(head.norm, f"running_{name}").copy_(values[member])
        return head.requires_grad_(True).eval()
