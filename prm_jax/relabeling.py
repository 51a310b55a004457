"""The command `python -m prm_jax.relabeling`; what it does is in generate/relabeling.py."""

from prm_jax.generate.relabeling import main

if __name__ == "__main__":
    main()
