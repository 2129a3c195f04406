"""Chains: middlewares compiled, once, into one callable per hook. Knows no agent, no model and no tool.

# The laws that this package keeps

A *layer* is one middleware's hook. The first middleware listed is outermost. A hook that no middleware overrides has no
chain: its entry *is* the core function. Whatever a layer opens is remembered by the one owner of the entry into the
chain and closed there, innermost first, in the task that closes, before control returns.

An *observer* sees what happens, and is in no chain: it stands where no layer can keep anything from it. One of them
sees each call of a layer.
"""
