"""An independent float64 NumPy definition of the transformer and of GRPO, one trajectory a time."""

import numpy as np
from flax import nnx


def float64(params):
    """The parameters as a nested dictionary of float64 arrays."""

    def convert(tree):
        if isinstance(tree, dict):
            return {key: convert(value) for key, value in tree.items()}
        return np.asarray(tree, np.float64)

    return convert(nnx.to_pure_dict(params))


def _norm(x, scale, epsilon):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + epsilon) * scale


def _rotated(x_THE, base):
    half = x_THE.shape[-1] // 2
    angle = np.arange(len(x_THE))[:, None] * base ** (-np.arange(half) / half)[None]
    turn = np.exp(1j * angle)[:, None, :]
    turned = (x_THE[..., :half] + 1j * x_THE[..., half:]) * turn
    return np.concatenate([turned.real, turned.imag], -1)


def _attention(q_THE, k_TKE, v_TKE):
    n_tokens, n_heads, d_head = q_THE.shape
    out = np.zeros_like(q_THE)
    for head in range(n_heads):
        shared = head * k_TKE.shape[1] // n_heads
        for t in range(n_tokens):
            scores = k_TKE[: t + 1, shared] @ q_THE[t, head] / np.sqrt(d_head)
            weights = np.exp(scores - scores.max())
            out[t, head] = weights / weights.sum() @ v_TKE[: t + 1, shared]
    return out


def logits(params, token_ids, a):
    """[T, V] of one sequence, from position 0, without any packing."""
    x = params["embedding_VD"][token_ids]
    for layer in range(a.n_layers):
        block = params["blocks"][layer]
        normed = _norm(x, block["attention_norm_D"], a.norm_epsilon)
        q = (normed @ block["query_DH"]).reshape(len(x), a.n_heads, a.d_head)
        k = (normed @ block["key_DK"]).reshape(len(x), a.n_kv_heads, a.d_head)
        v = (normed @ block["value_DK"]).reshape(len(x), a.n_kv_heads, a.d_head)
        mixed = _attention(_rotated(q, a.rope_base), _rotated(k, a.rope_base), v)
        x = x + mixed.reshape(len(x), -1) @ block["output_HD"]
        normed = _norm(x, block["feed_forward_norm_D"], a.norm_epsilon)
        gate = normed @ block["gate_DF"]
        x = x + (gate / (1 + np.exp(-gate)) * (normed @ block["up_DF"])) @ block["down_FD"]
    return _norm(x, params["final_norm_D"], a.norm_epsilon) @ params["embedding_VD"].T


def log_softmax(x):
    """Along the last axis."""
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def log_probs(params, trajectory, a, temperature):
    """[T] of one trajectory; 0 where the model does not own the token."""
    logp_TV = log_softmax(logits(params, trajectory.token_ids, a) / temperature)
    out = np.zeros(len(trajectory.token_ids))
    for t in np.flatnonzero(trajectory.loss_mask):
        out[t] = logp_TV[t - 1, trajectory.token_ids[t]]
    return out


def grpo_loss(params, reference, trajectories, advantages, config, a, temperature):
    """The token mean of the clipped ratio and of k3, by a loop over tokens."""
    total, n_tokens = 0.0, 0
    for trajectory, advantage in zip(trajectories, advantages, strict=True):
        logp = log_probs(params, trajectory, a, temperature)
        reference_logp = log_probs(reference, trajectory, a, temperature)
        for t in np.flatnonzero(trajectory.loss_mask):
            ratio = np.exp(logp[t] - trajectory.logp[t])
            clipped = min(max(ratio, 1 - config.clip_low), 1 + config.clip_high)
            towards = reference_logp[t] - logp[t]
            total -= min(ratio * advantage, clipped * advantage)
            total += config.kl_coefficient * (np.exp(towards) - 1 - towards)
            n_tokens += 1
    return total / n_tokens
