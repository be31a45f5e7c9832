"""XRPC refusals: the protocol's names and statuses, as a real PDS gives them."""


class Refusal(Exception):
    """A call is refused; becomes the JSON {"error": name, "message": message} with this HTTP status."""

    def __init__(self, name: str, message: str, status: int = 400) -> None:
        super().__init__(name, message, status)
        self.name = name
        self.message = message
        self.status = status

    def __str__(self) -> str:
        return f"{self.status} {self.name}: {self.message}"


def invalid_request(message: str) -> Refusal:
    """The call itself is wrong."""
    return Refusal("InvalidRequest", message)


def not_authenticated(message: str = "this method needs an access token") -> Refusal:
    """There is no token."""
    return Refusal("AuthMissing", message, 401)


def forbidden(message: str) -> Refusal:
    """The token is good, but not for this."""
    return Refusal("Forbidden", message, 403)
