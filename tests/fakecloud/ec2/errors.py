"""What EC2 refuses: a code that programs read, a message for people, an HTTP status."""

from __future__ import annotations

from fakecloud.orders import BadOrder

# Codes whose status is not 400, the one of a request that is wrong.
_STATUS = {
    "AuthFailure": 401, "InvalidClientTokenId": 403, "SignatureDoesNotMatch": 403,
    "UnauthorizedOperation": 403, "OptInRequired": 403, "DryRunOperation": 412,
    "InsufficientInstanceCapacity": 500, "InternalError": 500, "InternalFailure": 500,
    "RequestLimitExceeded": 503, "ServiceUnavailable": 503, "Unavailable": 503,
}


class Ec2Error(Exception):
    """Is sent to the client as it is."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message
        self.status = _STATUS.get(code, 400)


def missing(name: str) -> Ec2Error:
    return Ec2Error("MissingParameter", f"The request must contain the parameter {name}")


def bad_value(name: str, value: object, why: str = "") -> Ec2Error:
    return Ec2Error("InvalidParameterValue",
                    f"Value ({value}) for parameter {name} is invalid. {why}".rstrip())


BadMarket = BadOrder    # A file or an order of the administrator is wrong.
