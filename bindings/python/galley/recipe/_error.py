"""The exception of the codec, in Python so that its attributes are typed."""


class RequestError(ValueError):
    """A request that cannot be served as sent; it holds the whole HTTP answer.

    `str(error)` is the message; `body` carries it, in some protocols with the path in front.
    """

    code: str
    """What kind of error: "invalid_argument", "not_found", "too_large", "unimplemented", ..."""
    status: int
    """HTTP status."""
    where: str
    """Offending path ("messages[3].content[0].type"), empty when there is none."""
    body: bytes
    """JSON body in the words of the request's protocol."""

    def __init__(self, message: str, code: str, status: int, where: str, body: bytes) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.where = where
        self.body = body

    def __reduce__(self):
        return RequestError, (str(self), self.code, self.status, self.where, self.body)
