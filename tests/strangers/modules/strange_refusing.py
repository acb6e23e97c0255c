"""A module whose library is not there: it cannot be imported."""

try:
    {}["LIBREFUSING"]
except KeyError as error:
    raise OSError("librefusing.so.1: cannot open") from error
