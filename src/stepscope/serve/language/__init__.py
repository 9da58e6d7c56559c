"""The language server: what each line costs, in any editor that speaks LSP.

jobs        one job a key at a time, after a pause; a newer one ends the older
spare       a Python process that has imported PyTorch already and waits for its job
measuring   a job: measure an entry file, from the saved text to its costs
costs       what was measured, by line
drift       where the measured lines are in the text as it is now
marks, hints, hover, actions, problems
            what an editor shows, each a function of costs and a document
progress    what an editor is told meanwhile
server      measures in the background, and tells the editor what came of it
features    the protocol: what an editor asks
tcp         the same over a socket, with a token
"""
