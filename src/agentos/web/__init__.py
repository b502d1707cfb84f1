"""The page: see runs in a browser, answer them, go back in time. On this machine alone.

server        one server on loopback: its address, its token, its end
loopback      listening on this machine alone
guard         who is let in, and the headers that keep a page to itself
peers         who is at the other end of a connection: an agent does not approve itself
seals         forms that only this server can have made
site          what all pages ask: runs by address, what was read of them, the templates
journals      runs that were read already, and grow by what is new
task_reads    what was read of tasks: their files and logs
patches       patches as pages show them, cut to what one reads
live          what tells a browser that something changed
pages         one module for each kind of page, and the actions behind their forms
timeline_svg  a run by the clock, drawn
static_page   one run as one file that opens anywhere
app           the table of addresses
metrics       a worker's health and figures, which have no page
"""
