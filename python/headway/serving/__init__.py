# SPDX-License-Identifier: Apache-2.0
"""Models for serving: a folder with tables and a compiled dense part, and a predictor for one process."""

from headway.serving.export import export
from headway.serving.grm import DenseGRM, export_grm
from headway.serving.package import Bucket, DenseFeature, Manifest, PackageError, ServedFeature
from headway.serving.predictor import Predictor
from headway.serving.requests import Request, RequestError

__all__ = [
    "Bucket",
    "DenseFeature",
    "DenseGRM",
    "Manifest",
    "PackageError",
    "Predictor",
    "Request",
    "RequestError",
    "ServedFeature",
    "export",
    "export_grm",
]
