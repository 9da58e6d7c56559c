"""Gradients outside of `jax.jit` are calls of the program; run by `test_with_jax.py`."""

from __future__ import annotations

import pickle
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import grad as grad_before

from stepscope.record.jax.jit_calls import JitCallWatch

WEIGHTS, X = jnp.ones((4, 3)), jnp.ones((2, 4))


def loss(weights, x):
    return jnp.tanh(x @ weights).sum()


def loss_and_sum(weights, x):
    return loss(weights, x), x.sum()


def names_of(program, calls=2):
    """The names of the calls that the program makes the second time."""
    program()
    names = []
    watch = JitCallWatch(lambda call: names.append(call.name))
    for _ in range(calls - 1):
        program()
    watch.remove()
    return names


def in_user_code(make):
    """Make a function while calls are watched, as a script does."""
    names = []
    watch = JitCallWatch(lambda call: names.append(call.name))
    function = make()
    function(WEIGHTS, X)
    names.clear()
    result = function(WEIGHTS, X)
    watch.remove()
    return names, result


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: jax.grad(loss), ["grad(loss)"]),
        (lambda: jax.value_and_grad(loss), ["value_and_grad(loss)"]),
        (lambda: jax.value_and_grad(loss_and_sum, has_aux=True), ["value_and_grad(loss_and_sum)"]),
        (lambda: jax.grad(jax.jit(loss)), ["grad(loss)"]),
        (lambda: jax.grad(lambda w, x: loss(w, x)), ["grad(<lambda>)"]),
        (lambda: jax.jit(jax.grad(loss)), ["loss"]),
        (lambda: jax.jit(lambda w, x: jax.grad(loss)(w, x)), ["<lambda>"]),
        (lambda: jax.grad(lambda w, x: jax.grad(loss)(w, x).sum()), ["grad(<lambda>)"]),
        (lambda: jax.vmap(jax.grad(loss), in_axes=(None, 0)), []),
        (lambda: jax.value_and_grad(jax.checkpoint(loss)), ["value_and_grad(loss)"]),
    ],
)
def test_only_outermost_gradients_outside_of_compiled_functions_are_calls(make, names):
    found, result = in_user_code(make)
    assert found == names
    expected = make()(WEIGHTS, X)
    for one, other in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_parts_of_a_gradient_are_no_calls_but_programs_compiled_ahead_are():
    gradient = grad_before(jax.jit(loss))
    assert names_of(lambda: gradient(WEIGHTS, X)) == []
    ahead = jax.jit(loss).lower(WEIGHTS, X).compile()
    assert names_of(lambda: ahead(WEIGHTS, X)) == ["compiled"]


def test_jax_is_as_it_was_afterwards():
    before = jax.grad, jax.value_and_grad
    JitCallWatch(lambda call: None).remove()
    assert (jax.grad, jax.value_and_grad) == before


def test_errors_of_the_function_pass_unchanged():
    def fails(weights, x):
        raise ValueError("of the user")

    watch = JitCallWatch(lambda call: None)
    gradient = jax.grad(fails)
    for _ in range(2):
        with pytest.raises(ValueError, match="of the user") as caught:
            gradient(WEIGHTS, X)
        files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert files[-1] == __file__
    watch.remove()
    with pytest.raises(TypeError):
        jax.grad(loss)(1)


def test_lines_of_a_program_are_those_of_the_user():
    watch = JitCallWatch(lambda call: None)
    lowered = jax.jit(lambda w, x: jax.grad(loss)(w, x)).lower(WEIGHTS, X)
    watch.remove()
    assert "eager_gradients.py" in lowered.as_text(debug_info=True)
    assert "capture/jax/eager_gradients.py" not in lowered.as_text(debug_info=True)


def test_the_function_keeps_its_name_and_signature():
    watch = JitCallWatch(lambda call: None)
    ours = jax.grad(loss)
    watch.remove()
    theirs = grad_before(loss)
    assert ours.__name__ == theirs.__name__
    assert ours.__doc__ == theirs.__doc__
    assert pickle.loads(pickle.dumps(loss)) is loss
