"""The credentials of an account in a cloud, as functions for `auth=`."""

from agentrt.model.cloud.aws import AWSAuth, AWSKeys
from agentrt.model.cloud.google import GoogleAuth, GoogleToken

__all__ = ["AWSAuth", "AWSKeys", "GoogleAuth", "GoogleToken"]
