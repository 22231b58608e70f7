"""The engine: joins scheduler, kernels and models. Each sub-package has one role."""
