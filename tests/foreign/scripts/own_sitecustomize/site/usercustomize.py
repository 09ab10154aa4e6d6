"""The other file of that kind."""

print("usercustomize of the user's", flush=True)
