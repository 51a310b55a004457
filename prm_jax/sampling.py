"""Runs `python -m prm_jax.sampling`; the code is in generate/pools.py."""

from prm_jax.generate.pools import main

if __name__ == "__main__":
    main()
