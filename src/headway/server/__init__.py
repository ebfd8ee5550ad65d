"""The service: the REST interface, streams and the protocol of workers that speak HTTP."""

from headway.server.api import client_of as client_of
from headway.server.api import headway_api as headway_api
