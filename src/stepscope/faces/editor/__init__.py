"""The language server: what each line costs, in any editor that speaks LSP.

measuring           measure an entry file, from the saved text to its costs
measured_costs      what was measured, by line, and with which settings
line_marks          marks, hovers, hints and lenses of the measured lines in the current text
documents           the client's open documents, the latest measurements, and their diagnostics
text_document       documents with the lines and columns of the LSP specification
code_actions        where the batch size is in the current text, and the edits and actions there
background          one job per key, its progress, and answers of other processes
language_server     measures in the background and sends the client the results
features            each request of the client
protocol            an answer to every request, also to those that cannot be read
tcp                 the same over a socket, with a token
"""
