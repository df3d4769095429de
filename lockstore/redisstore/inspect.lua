changed = false -- it writes nothing
return told(count(queue)) .. listed()
