"""What the tests of stores share: a proxy before the S3 server."""

import sys
from pathlib import Path

import pytest

# The proxy stands beside the tests, which are not a package.
sys.path.insert(0, str(Path(__file__).parent))

from s3_proxy import running_proxy


@pytest.fixture
def s3_proxy(moto_url):
    """A proxy before moto; ``faults`` makes its answers false."""
    with running_proxy(moto_url) as proxy:
        yield proxy


@pytest.fixture
def proxied_options(s3_proxy, s3_options):
    """Storage options of the server behind the proxy; the client repeats what fails, twice."""
    client = {**s3_options["client_kwargs"], "endpoint_url": s3_proxy.url}
    return {**s3_options, "client_kwargs": client}
