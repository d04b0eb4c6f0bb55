"""Replacement for SGLang's package of CUDA kernels on machines without an accelerator; see ../../sitecustomize.py."""
