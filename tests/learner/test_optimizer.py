import jax.numpy as jnp
import numpy as np
import optax
from learner_toys import OPTIMIZER

from tiderl_jax.learner.optimizer import learning_rate, make_optimizer


def changed(**changes):
    fields = {name: getattr(OPTIMIZER, name) for name in OPTIMIZER.__slots__}
    return type(OPTIMIZER)(**{**fields, **changes})


def test_the_rate_rises_to_its_peak_and_falls_to_its_final_share():
    config = changed(learning_rate=1.0, warmup_updates=4, final_share=0.2)
    rate = learning_rate(config, total_updates=13)
    rates = [float(rate(n)) for n in (0, 1, 2, 3, 4, 8, 12, 40)]
    np.testing.assert_allclose(rates, [0.25, 0.5, 0.75, 1, 1, 0.6, 0.2, 0.2], rtol=1e-6)


def test_a_run_of_one_update_has_the_full_rate():
    assert float(learning_rate(changed(learning_rate=0.5), total_updates=1)(0)) == 0.5


def test_decay_spares_vectors():
    tx = make_optimizer(changed(weight_decay=0.5, learning_rate=1.0), total_updates=10)
    params = {"matrix": jnp.ones((2, 2)), "vector": jnp.ones(2)}
    zero = optax.tree.zeros_like(params)
    updates, _ = tx.update(zero, tx.init(params), params)
    np.testing.assert_array_equal(updates["matrix"], -0.5)
    np.testing.assert_array_equal(updates["vector"], 0)


def test_a_large_gradient_is_clipped_by_its_global_norm():
    tx = make_optimizer(changed(max_grad_norm=1.0), total_updates=10)
    params = {"matrix": jnp.zeros((1, 2))}
    _, state = tx.update({"matrix": jnp.array([[30.0, 40.0]])}, tx.init(params), params)
    (adam,) = [s for s in state[1] if hasattr(s, "mu")]
    np.testing.assert_allclose(adam.mu["matrix"], [[0.06, 0.08]], rtol=1e-6)
