import sys
sys.addaudithook(lambda event, arguments: event == "open" and str(arguments[0]).endswith("seen.txt") and print("open", arguments[1]))
open("seen.txt", "w").write("x")
print(open("seen.txt").read())
