"""The credentials of an account in a cloud, as functions for `auth=`."""
